package c

import (
	"errors"
	"io"

	"github.com/gotower/gotower/layer"
)

func compares(err error) string {
	if err == layer.ErrNotReady { // want `layer.ErrNotReady comes wrapped: use errors.Is`
		return "not ready"
	}
	if layer.ErrNotReady != err { // want `layer.ErrNotReady comes wrapped: use errors.Is`
		return "something else"
	}
	switch err {
	case io.EOF:
	case layer.ErrNotReady: // want `layer.ErrNotReady comes wrapped: use errors.Is`
	}
	switch {
	case errors.Is(err, layer.ErrNotReady), err == io.EOF:
	}
	return ""
}

type failure struct{ Kind error }

func isRefusal(f failure) bool { return f.Kind == layer.ErrNotReady }

func (failure) Error() string { return "failure" }

func (failure) Is(target error) bool { return target == layer.ErrNotReady }

func kinds(err error) bool {
	var e *layer.Error
	switch errors.As(err, &e); e.Kind {
	case layer.ErrNotReady: // want `layer.ErrNotReady comes wrapped: use errors.Is`
	}
	if e.Kind == layer.ErrClosed { // there is none that is more special
		return false
	}
	return e.Kind == layer.ErrNotReady // want `layer.ErrNotReady comes wrapped: use errors.Is`
}

func parentheses(err error, f failure) bool {
	return (err) == (layer.ErrNotReady) || // want `layer.ErrNotReady comes wrapped: use errors.Is`
		(f.Kind) == layer.ErrNotReady
}
