# Two images with the programs of this module. They need a read-only root file system only.
#
#   docker build -t gotower .                      all programs, such as /proxy and /gateway
#   docker build -t gotower-init --target init .   /init with iptables, for init containers
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

FROM ${BASE}
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/proxy"]
