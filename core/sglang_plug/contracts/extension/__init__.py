"""The contract of step extensions: plugins that take part in the steps of an engine.

The engine knows tokens, KV slots and tensors. A step extension adds a feature to it, such as speculative decoding or
structured outputs. It is built once per engine and implements the phases that it needs: see ``phases.py`` for all of
them. Most extensions need few: one that owns memory needs ``StatePhase``, and ``MemoryPhase``, which sizes and
allocates it. For most methods the engine keeps a list of the extensions that override it; an empty list costs one
truth test per step, and nothing costs anything per token.

All methods but those of ``WatchdogPhase`` run in the engine's thread, on rank 0 where several ranks share a model.
Where the spec says ``worker_ranks=True``, the extension is also built on each other rank, a worker rank: of that object
the engine calls only the methods of ``ModelPhase`` (but not ``context``), ``ExecutionPhase``, and ``prepare_step`` and
``handle_command`` of ``RankPhase``.

The profiling run at the start computes sequences of text that were never admitted and own nothing: an extension must
be able to prepare and compute such a step, and to provide its graph inputs.

An extension keeps what it knows of a sequence in ``sequence.extras[self]``. An exception while a request is admitted,
held or queued ends that request: a ``RequestError`` is sent to the client, and any other one is an internal error
that names the extension. An exception while a step is computed ends the requests of the step. One while a step is
planned ends all requests that wait or run, since any of them may be the reason. Three such steps in a row end the
engine. An exception of ``finished`` is logged. Any other one, for instance while a step is committed, ends the engine.
"""
