"""An engine that behaves like vLLM or SGLang to everything outside it, without GPUs or tensors of any size.

It knows its own command line, its environment and the files it is given, and nothing about who started it.
Standard library only, so that an image is a few megabytes and sixteen of them start on two cores.
"""
