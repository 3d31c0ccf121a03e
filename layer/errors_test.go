package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestErrorMatches(t *testing.T) {
	tests := []struct {
		err     error
		is      []error
		isNot   []error
		text    string
		timeout bool
		again   bool
	}{
		{
			err:   &layer.Error{Layer: "limit", Kind: layer.ErrNotReady, Reason: "8 of 8 in flight"},
			is:    []error{layer.ErrNotReady},
			isNot: []error{layer.ErrClosed, layer.ErrFailFast, layer.ErrTimeout},
			text:  "limit: not ready: 8 of 8 in flight",
			again: true,
		},
		{
			err: &layer.Error{
				Layer: "balance", Target: "web:80", Endpoint: "10.0.0.1:80", Kind: layer.ErrClosed, Err: io.EOF,
			},
			is:   []error{layer.ErrClosed, layer.ErrNotReady, io.EOF},
			text: "balance web:80 10.0.0.1:80: closed: EOF",
		},
		{
			err: &layer.Error{
				Layer: "queue", Kind: layer.ErrFailFast, Reason: "not ready within 3s", Waited: 3 * time.Second,
				Err: &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "no endpoints"},
			},
			is:    []error{layer.ErrFailFast, layer.ErrNotReady},
			isNot: []error{layer.ErrClosed},
			text:  "queue: fail-fast: not ready within 3s (waited 3s): balance: not ready: no endpoints",
			again: true,
		},
		{
			err:     &layer.Error{Layer: "timeout", Kind: layer.ErrTimeout},
			is:      []error{layer.ErrTimeout, context.DeadlineExceeded},
			isNot:   []error{layer.ErrNotReady},
			text:    "timeout",
			timeout: true,
		},
		{err: &layer.Error{Layer: "x", Err: io.EOF}, is: []error{io.EOF}, text: "x: EOF"},
		{err: &layer.Error{Layer: "x"}, isNot: []error{layer.ErrNotReady}, text: "x"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			wrapped := fmt.Errorf("outer: %w", tt.err)
			for _, target := range tt.is {
				require.ErrorIs(t, wrapped, target)
			}
			for _, target := range tt.isNot {
				require.NotErrorIs(t, wrapped, target)
			}
			require.EqualError(t, tt.err, tt.text)
			var e *layer.Error
			require.ErrorAs(t, wrapped, &e)
			require.Equal(t, tt.timeout, e.Timeout())
			require.Equal(t, tt.again, e.Temporary())
		})
	}
}

func TestErrorIsAllocations(t *testing.T) {
	var err error = &layer.Error{Layer: "queue", Kind: layer.ErrFailFast, Err: io.EOF}
	for _, kind := range []error{layer.ErrFailFast, layer.ErrNotReady} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = errors.Is(err, kind) }))
	}
	require.NotErrorIs(t, err, layer.ErrClosed)
	require.ErrorIs(t, err, io.EOF)
	require.NotErrorIs(t, &layer.Error{Layer: "x"}, layer.ErrNotReady)
}
