package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A GET request waits for ten minutes until the API server answers, with an attempt every one
// to two seconds. A write does not wait. The end of the context ends the wait.
func TestPatientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, attempts := time.Now(), 0
		refused := errors.New("refused")
		p := &patient{log: slog.New(slog.DiscardHandler), next: roundTripper(func(*http.Request) (*http.Response, error) {
			attempts++
			if time.Since(began) < 10*time.Minute {
				return nil, refused
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})}
		do := func(ctx context.Context, method string) error {
			req, err := http.NewRequestWithContext(ctx, method, "https://api.example", http.NoBody)
			require.NoError(t, err)
			rsp, err := p.RoundTrip(req)
			if err == nil {
				err = rsp.Body.Close()
			}
			return err
		}
		require.ErrorIs(t, do(t.Context(), http.MethodPut), refused)
		require.Equal(t, 1, attempts)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, do(ctx, http.MethodGet), refused)
		require.Equal(t, time.Minute, time.Since(began))
		attempts = 0
		require.NoError(t, do(t.Context(), http.MethodGet))
		require.Less(t, time.Since(began), 10*time.Minute+2*retryDelay)
		require.InDelta(t, 360, attempts, 100)
	})
}
