package tap

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is why somebody may not watch. Over gRPC it is a status, and so it is
// for [status.Code] in the process.
type refusal struct {
	code codes.Code
	why  error
}

// refuse leaves a refusal as it is.
func refuse(code codes.Code, why error) error {
	if _, ok := why.(*refusal); ok { //nolint:errorlint // one that is wrapped says something else
		return why
	}
	return &refusal{code, why}
}

func (r *refusal) Error() string              { return "tap: " + r.why.Error() }
func (r *refusal) Unwrap() error              { return r.why }
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, valid(r.Error())) }
