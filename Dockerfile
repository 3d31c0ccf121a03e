# Four images with the programs of this module. They need a read-only root file system only.
#
#   docker build -t gotower .                            all programs, such as /proxy and /gateway
#   docker build -t gateway --target gateway .           /gateway, with the file /etc/gateway/gateway.yaml
#   docker build -t gotower-init --target init .         /init with iptables, for init containers
#   docker build -t gotower-linkerd --target linkerd .   the proxy, for the injector of linkerd's control plane
ARG GO=golang:1.26
ARG BASE=gcr.io/distroless/static-debian12:nonroot
ARG INIT_BASE=debian:stable-slim

FROM ${GO} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags='-s -w' -o /out/ ./examples/...

FROM ${INIT_BASE} AS init
RUN apt-get update && apt-get install -y --no-install-recommends iptables && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/init /init
ENTRYPOINT ["/init"]

FROM init AS linkerd
COPY --from=build /out/proxy /proxy
# The programs that linkerd's chart runs, by their names.
RUN mkdir -p /usr/lib/linkerd && ln -s /init /usr/lib/linkerd/linkerd2-proxy-init && \
    ln -s /proxy /usr/lib/linkerd/linkerd2-proxy-identity && ln -s /proxy /usr/lib/linkerd/linkerd-await
USER 65532:65532
ENTRYPOINT ["/usr/lib/linkerd/linkerd2-proxy-identity"]

FROM ${BASE} AS gateway
COPY --from=build /out/gateway /gateway
USER 65532:65532
HEALTHCHECK CMD ["/gateway", "health", "/etc/gateway/gateway.yaml"]
ENTRYPOINT ["/gateway"]
CMD ["run", "/etc/gateway/gateway.yaml"]

FROM ${BASE}
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/proxy"]
