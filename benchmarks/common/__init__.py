"""Parts that benchmarks share: machine limits, model shapes, servers, reports."""
