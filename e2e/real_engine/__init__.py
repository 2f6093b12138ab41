"""The real vLLM on CPU behind the product on kind: what the engine stub pretends, once without pretending.

Nothing is copied into nodes: the installation and the model lie in the folder that every node sees.
"""
