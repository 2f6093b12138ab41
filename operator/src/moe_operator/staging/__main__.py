"""``python -m moe_operator.staging``."""

from moe_operator.staging.cli import main

main(prog_name="moestage")
