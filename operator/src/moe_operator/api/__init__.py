"""The contracts: the MoEDeployment as Pydantic models, names, conditions, manifest, gateway intent, admin policy."""
