"""``python -m tests.gateway.write_golden``: render the golden files anew; review the diff like code."""

from moe_operator.gateway.render import render

from tests.gateway.test_render import GOLDEN, SHIFTING, SITE

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, text in render(SHIFTING, SITE).items():
        (GOLDEN / name).write_text(text)
