package httpclient_test

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/resolve"
)

// answersAfter returns a resolver whose first answer comes after d.
func answersAfter(d time.Duration, first resolve.Update, err error) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return
			}
			if yield(first, err) {
				<-ctx.Done()
			}
		}
	})
}

// A request waits for the first answer of the resolver, as one of net/http waits for its dialer, and
// then for an endpoint.
func TestClientAwaitsResolver(t *testing.T) {
	one := resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{{ID: resolve.ID{Addr: netip.MustParseAddrPort(server(t, "ok", 0))}}}}
	for name, tt := range map[string]struct {
		first resolve.Update
		err   error
		after time.Duration
		opts  []httpclient.Option
		fails time.Duration // 0: the request gets a response
	}{
		"slow":                 {one, nil, 6 * time.Second, nil, 0},
		"slower":               {one, nil, 29 * time.Second, nil, 0},
		"too slow":             {one, nil, time.Hour, nil, 33 * time.Second},
		"error":                {resolve.Update{}, errors.New("no server"), 6 * time.Second, nil, 6 * time.Second},
		"no endpoints":         {resolve.Update{Kind: resolve.Empty}, nil, 6 * time.Second, nil, 9 * time.Second},
		"unresolvable":         {resolve.Update{}, resolve.ErrUnresolvable, 6 * time.Second, nil, 6 * time.Second},
		"with a shorter limit": {one, nil, 6 * time.Second, []httpclient.Option{httpclient.WithTimeout(time.Second)}, 2 * time.Second},
		"without a limit":      {one, nil, time.Hour, []httpclient.Option{httpclient.WithTimeout(0)}, 0},
		"within its own limit": {one, nil, 6 * time.Second, []httpclient.Option{httpclient.WithTimeout(7 * time.Second)}, 0},
		"at once":              {one, nil, 0, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				web := httpclient.New(ctx, "web", append(tt.opts, httpclient.WithResolver(answersAfter(tt.after, tt.first, tt.err)))...)
				start := time.Now()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web/", http.NoBody)
				require.NoError(t, err)
				rsp, err := web.RoundTrip(req)
				if tt.fails > 0 {
					require.Error(t, err)
					require.Equal(t, tt.fails, time.Since(start))
					return
				}
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, rsp.StatusCode)
				require.NoError(t, rsp.Body.Close())
			})
		})
	}
}
