package layer_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// peekResponse is a response that shows its outcome only after a Peek.
type peekResponse struct {
	failed, ahead bool
	Body          io.ReadCloser // that it ends with
}

type fate struct{ peeked, discarded int }

// peekReplayer is a Replayer with a Peek.
type peekReplayer struct {
	fate  *fate
	whole bool
}

func (peekReplayer) Idempotent(*retryRequest) bool { return true }

func (peekReplayer) Replay(req *retryRequest, limit int64) layer.Replay[*retryRequest] {
	if req.Body == nil {
		return nil
	}
	return keptAgain{layer.ReplayBody(req.Body, nil, limit)}
}

func (peekReplayer) RetryAfter(*peekResponse, error) (time.Duration, bool) { return 0, false }

func (r peekReplayer) Drain(v *peekResponse) {
	if v.ahead {
		r.fate.discarded++
	}
}

func (r peekReplayer) Peek(_ context.Context, v *peekResponse) (*peekResponse, bool) {
	r.fate.peeked++
	return &peekResponse{ahead: true}, r.whole
}

func (peekReplayer) Outline(*peekResponse) string { return "a verse" }

type keptAgain struct{ *layer.BodyReplay }

func (k keptAgain) Next() (*retryRequest, bool) {
	body, ok := k.BodyReplay.Next()
	return &retryRequest{Body: body}, ok
}

// peeking is a Retry over a service that fails twice, in its trailers.
func peeking(r peekReplayer, policy layer.RetryPolicy[*retryRequest, *peekResponse], inner func(req *retryRequest)) layer.Service[*retryRequest, *peekResponse] {
	n := 0
	if policy.MaxAttempts == 0 {
		policy.MaxAttempts = 5
	}
	policy.Backoff = layer.Backoff{Min: 1, Max: 1}
	policy.RetryIf = func(o layer.Outcome[*peekResponse]) bool { return o.Ended && o.Response.failed }
	classify := layer.WithClassifier(func(o layer.Outcome[*peekResponse]) layer.Class {
		if o.Ended && o.Response.failed {
			return layer.Failure
		}
		return layer.Success
	})
	return layer.Retry(policy, layer.WithReplayer[*retryRequest](r), classify)(layer.Func[*retryRequest, *peekResponse](
		func(_ context.Context, req *retryRequest) (*peekResponse, error) {
			inner(req)
			n++
			return &peekResponse{failed: n <= 2}, nil
		}))
}

func readAll(req *retryRequest) {
	if req.Body != nil {
		_, _ = io.ReadAll(req.Body)
	}
}

func TestRetryPeek(t *testing.T) {
	unread := func(*retryRequest) {}
	for name, tt := range map[string]struct {
		whole             bool
		policy            layer.RetryPolicy[*retryRequest, *peekResponse]
		body              string
		inner             func(*retryRequest)
		peeked, discarded int
		ahead             bool
	}{
		"a failure in the trailers":   {whole: true, inner: unread, peeked: 3, discarded: 2, ahead: true},
		"which come too late":         {inner: unread, peeked: 1, ahead: true},
		"not of the last try":         {whole: true, policy: layer.RetryPolicy[*retryRequest, *peekResponse]{MaxAttempts: 2}, inner: unread, peeked: 1, discarded: 1},
		"with a body that was sent":   {whole: true, body: "x", inner: readAll, peeked: 3, discarded: 2, ahead: true},
		"with a body that was not":    {whole: true, body: "x", inner: unread},
		"with a body that is lost":    {whole: true, policy: layer.RetryPolicy[*retryRequest, *peekResponse]{MaxBodyBytes: 3}, body: "four", inner: readAll},
		"where it is not to be again": {whole: true, policy: layer.RetryPolicy[*retryRequest, *peekResponse]{CanRetry: func(*retryRequest) bool { return false }}, inner: unread},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := peekReplayer{new(fate), tt.whole}
				req := &retryRequest{}
				if tt.body != "" {
					req.Body = io.NopCloser(strings.NewReader(tt.body))
				}
				rsp, err := peeking(r, tt.policy, tt.inner).Call(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, tt.ahead, rsp.ahead)
				assert.Equal(t, fate{tt.peeked, tt.discarded}, *r.fate)
			})
		})
	}
}

func TestRetryExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := peekReplayer{new(fate), true}
		ctx, why := layer.Explain(t.Context())
		_, err := peeking(r, layer.RetryPolicy[*retryRequest, *peekResponse]{}, readAll).Call(ctx, &retryRequest{})
		require.NoError(t, err)
		assert.Equal(t, `retry      attempt=2 because=failure: a verse budget=99
retry      attempt=3 because=failure: a verse budget=98
retry      attempts=3 budget=98
`, why.String())
	})
}

func TestRetryExplainSkipped(t *testing.T) {
	for name, tt := range map[string]struct {
		policy retryPolicy
		inner  retryInner
		want   string
	}{
		"fine":   {retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) { return bodyOf(""), nil }, "retry      target=web:80 attempts=1 budget=100\n"},
		"budget": {retryPolicy{Budget: noBudget()}, alwaysFails(new(int)), "retry      target=web:80 attempts=1 failed=server failed skipped=budget budget=0\n"},
		"tries":  {retryPolicy{MaxAttempts: 2}, alwaysFails(new(int)), "retry      target=web:80 attempt=2 because=server failed budget=99\nretry      target=web:80 attempts=2 failed=server failed skipped=attempts budget=99\n"},
		"rejected": {retryPolicy{RetryIf: func(layer.Outcome[*response]) bool { return false }}, func(context.Context, int, *retryRequest) (*response, error) {
			return nil, layer.ErrNotReady
		}, "retry      target=web:80 attempts=1 budget=100\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, why := layer.Explain(t.Context())
				_, _ = retrying(tt.policy, tt.inner, layer.WithTarget[*response]("web:80")).Call(ctx, &retryRequest{})
				assert.Equal(t, tt.want, why.String())
			})
		})
	}
}
