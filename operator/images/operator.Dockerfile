# The operator, the stager and the gateway agent.
# Context (made by `python -m e2e.images build`): wheels/ holds this project and its locked requirements.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
COPY wheels /wheels
# pip runs from its own wheel: the base needs Python and nothing else, and no network.
RUN python3 -m venv --without-pip /app \
 && python3 $(echo /wheels/pip-*.whl)/pip --python /app/bin/python3 install \
      --no-index --find-links /wheels --no-cache-dir --no-compile 'moe-operator[operator]' \
# The generated clients of every Kubernetes API are half of all bytes; the operator speaks plain dicts.
 && find /app/lib/python3*/site-packages/kubernetes \
      \( -path '*/client/api/*_api.py' -o -path '*/client/models/*.py' \) ! -name __init__.py -delete \
# The file system is read-only at run time, so bytecode is made now.
 && python3 -m compileall -q /app/lib

FROM ${BASE}
COPY --from=build /app /app
# Python's own images come without bytecode: each start would compile the standard library anew.
RUN python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))' \
  | xargs python3 -m compileall -q -x '/(site-packages|dist-packages|ensurepip|idlelib|pydoc_data|test|tkinter|turtledemo)/'
# Nothing extends our models; looking for plugins reads the metadata of every package, at each start.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYDANTIC_DISABLE_PLUGINS=__all__
USER 65532:65532
ENTRYPOINT ["moe-operator"]
