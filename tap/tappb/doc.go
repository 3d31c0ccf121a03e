// Package tappb is gotower's own tap API over gRPC, see tap.proto. Package tap
// serves and calls it.
package tappb

//go:generate go -C ../../tools run ./protogen ../tap/tappb/tap.proto gotower/tap/v1/tap.proto
