package layer_test

import (
	"context"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// forking is an Editor for the messages of the kit, with the methods that a Mirror calls.
type forking struct {
	layer.Editor[*layertest.Request, *layertest.Response]
}

func (forking) TeeRequest(req *layertest.Request, limit int64, whole func(*layertest.Request, bool)) *layertest.Request {
	copied := &layertest.Request{ID: req.ID, Header: maps.Clone(req.Header)}
	if req.Body == nil {
		whole(copied, true)
		return req
	}
	out := *req
	out.Body = layer.TeeBody(req.Body, -1, limit, func(kept []byte, ok bool) {
		copied.Body = io.NopCloser(strings.NewReader(string(kept)))
		whole(copied, ok)
	})
	return &out
}

// copyTarget is the service that receives copies. It records their bodies.
type copyTarget struct {
	serve func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) // nil answers

	mu   sync.Mutex
	came []string
	ctx  context.Context // the last copy's, to look at
}

func (s *copyTarget) Ready(context.Context) error { panic("a mirror is not waited for") }

func (s *copyTarget) Call(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
	body := ""
	if req.Body != nil {
		b, _ := io.ReadAll(req.Body)
		body = string(b)
	}
	s.mu.Lock()
	s.came, s.ctx = append(s.came, body), ctx
	s.mu.Unlock()
	if s.serve != nil {
		return s.serve(ctx, req)
	}
	return &layertest.Response{ID: req.ID}, nil
}

func (s *copyTarget) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.came...)
}

type (
	mirrorPolicy = layer.MirrorPolicy[*layertest.Request]
	kitFunc      = layer.Func[*layertest.Request, *layertest.Response]
	kitService   = layer.Service[*layertest.Request, *layertest.Response]
)

// mirrorShared runs f in a bubble, with the context of a Mirror.
func mirrorShared(t *testing.T, f func(t *testing.T, life context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		life, cancel := context.WithCancel(t.Context())
		defer time.Sleep(time.Second) // what a copy takes to end
		defer cancel()
		f(t, life)
	})
}

// reads responds after it has read the whole request.
func reads(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
	}
	return &layertest.Response{ID: req.ID, Body: io.NopCloser(strings.NewReader("primary"))}, nil
}

func withText(text string) *layertest.Request {
	return &layertest.Request{Body: io.NopCloser(strings.NewReader(text))}
}

// outcomes returns the counts of the outcomes of copies, without zeros.
func outcomes(svc kitService) map[string]int64 {
	got := map[string]int64{}
	for _, a := range layer.Describe(svc).State {
		if n, ok := a.Value.(int64); ok && n != 0 {
			got[a.Key] = n
		}
	}
	return got
}

// ask sends one request, and checks that it is served as without a mirror.
func ask(t *testing.T, svc kitService, req *layertest.Request) {
	t.Helper()
	rsp, err := svc.Call(t.Context(), req)
	if !assert.NoError(t, err) {
		return
	}
	b, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	assert.Equal(t, "primary", string(b))
}
