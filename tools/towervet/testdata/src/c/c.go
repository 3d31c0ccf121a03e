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
