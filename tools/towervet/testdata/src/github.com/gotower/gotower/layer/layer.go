// Package layer is as much of the real one as the tests need.
package layer

import (
	"context"
	"errors"
)

type Service[Req, Rsp any] interface {
	Ready(ctx context.Context) error
	Call(ctx context.Context, req Req) (Rsp, error)
}

var (
	ErrNotReady = errors.New("not ready")
	ErrClosed   = errors.New("closed")
)

type Error struct{ Kind error }

func (e *Error) Error() string { return e.Kind.Error() }

func Poll[Req, Rsp any](svc Service[Req, Rsp]) error { return svc.Ready(context.Background()) }
