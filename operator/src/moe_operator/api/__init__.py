"""The contracts: the MoEDeployment, names, conditions, manifest, gateway intent, admin policy."""
