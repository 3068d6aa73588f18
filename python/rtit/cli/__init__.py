"""The command line: one file per verb, each with `add_arguments(parser)` and `run(arguments) ->
exit code`.
"""
