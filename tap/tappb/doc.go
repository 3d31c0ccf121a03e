// Package tappb contains the generated code of gotower's own tap API over gRPC, see
// tap.proto. Package tap implements the client and the server.
package tappb

//go:generate go -C ../../tools run ./protogen ../tap/tappb/tap.proto gotower/tap/v1/tap.proto
