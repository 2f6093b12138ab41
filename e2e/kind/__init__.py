"""The product on the real cluster: images in the nodes, the chart's release, what deployments need beside it.

``e2e.cluster`` makes the nodes and knows nothing of this project; this room brings the project into them, as
an administrator would.
"""
