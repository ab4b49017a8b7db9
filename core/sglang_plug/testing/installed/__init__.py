"""The conformance tests of installed components, as ``sglang-plug plugins test`` runs them with pytest."""
