//go:build tools

package repository

// This import makes go.mod require a version of genproto in which googleapis/api and googleapis/rpc
// are separate modules. go-kit v0.13.0 requires a version from 2021 that still contains them. A
// module that imports this one and, for example, the OTLP exporter for gRPC would then find these
// packages in two modules, and "go mod tidy" would report an ambiguous import.
import _ "google.golang.org/genproto/googleapis/type/date"
