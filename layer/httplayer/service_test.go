package httplayer

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var _ layer.Completion[*http.Response] = Completion

// noted is an Observer that keeps what it hears.
type noted struct {
	rsp     *http.Response
	bytes   int
	ends    []error
	trailer string // trailer at the time of End
}

func (n *noted) Data(k int) { n.bytes += k }

func (n *noted) End(err error) {
	n.ends = append(n.ends, err)
	if n.rsp != nil {
		n.trailer = n.rsp.Trailer.Get("Sum")
	}
}

func TestCompletionWithoutBody(t *testing.T) {
	body := io.NopCloser(strings.NewReader(""))
	for name, rsp := range map[string]*http.Response{
		"nil":                 nil,
		"nil body":            {StatusCode: 200, ContentLength: -1},
		"NoBody":              {StatusCode: 200, Body: http.NoBody, ContentLength: -1},
		"204":                 {StatusCode: 204, Body: body, ContentLength: -1},
		"304":                 {StatusCode: 304, Body: body, ContentLength: 100},
		"HEAD":                {StatusCode: 200, Body: body, ContentLength: 100, Request: &http.Request{Method: "HEAD"}},
		"length 0":            {StatusCode: 200, Body: body, ProtoMajor: 1},
		"ended stream, no CL": {StatusCode: 200, Body: body, ProtoMajor: 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := &noted{}
			var before io.ReadCloser
			if rsp != nil {
				before = rsp.Body
			}
			got := Completion(t.Context(), rsp, n)
			assert.Same(t, rsp, got)
			assert.Equal(t, []error{nil}, n.ends)
			if rsp != nil {
				assert.Equal(t, before, got.Body)
				assert.Zero(t, testing.AllocsPerRun(1000, func() { Completion(t.Context(), rsp, quiet{}) }))
			}
		})
	}
}

type quiet struct{}

func (quiet) Data(int)  {}
func (quiet) End(error) {}

func TestCompletionBody(t *testing.T) {
	for name, rsp := range map[string]*http.Response{
		"length":                       {ContentLength: 5, ProtoMajor: 1},
		"no length":                    {ContentLength: -1, ProtoMajor: 1},
		"made by hand":                 {},
		"trailers after a length of 0": {ProtoMajor: 2, Header: http.Header{"Content-Length": {"0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			rsp.StatusCode = 200
			rsp.Body = io.NopCloser(strings.NewReader("hello"))
			first, second := &noted{}, &noted{}
			rsp = Completion(t.Context(), rsp, first)
			rsp = Completion(t.Context(), rsp, second)
			assert.Empty(t, first.ends)
			b, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			assert.Equal(t, "hello", string(b))
			require.NoError(t, rsp.Body.Close())
			for _, n := range []*noted{first, second} {
				assert.Equal(t, []error{nil}, n.ends)
				assert.Equal(t, 5, n.bytes)
			}
		})
	}
}

func TestCompletionTrailers(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for path, want := range map[string]string{"/announced": "42", "/unannounced": "43"} {
			rsp, err := endpoint(t, addr, protocol).Call(t.Context(), request(t, "GET", "http://web"+path, ""))
			require.NoError(t, err)
			n := &noted{rsp: rsp}
			rsp = Completion(t.Context(), rsp, n)
			read(t, rsp)
			assert.Equal(t, []error{nil}, n.ends)
			assert.Equal(t, want, n.trailer)
		}
	})
}

func TestCompletionUpgrade(t *testing.T) {
	both := &pipeEnd{}
	rsp := &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: both, ProtoMajor: 1, ContentLength: -1}
	first, second := &noted{}, &noted{}
	rsp = Completion(t.Context(), rsp, first)
	one := rsp.Body
	rsp = Completion(t.Context(), rsp, second)
	assert.Same(t, one, rsp.Body, "all observers share a wrapper")
	w, ok := rsp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	say(w, "hello")
	assert.Equal(t, "hello", both.written.String())
	half, ok := rsp.Body.(halfCloser)
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	assert.True(t, both.half)
	assert.Empty(t, first.ends)
	require.NoError(t, w.Close())
	assert.Equal(t, []error{layer.ErrBodyClosedEarly}, first.ends)
	assert.Equal(t, []error{layer.ErrBodyClosedEarly}, second.ends)
}

type pipeEnd struct {
	written bytes.Buffer
	half    bool
}

func (p *pipeEnd) Read([]byte) (int, error)    { return 0, io.EOF }
func (p *pipeEnd) Write(b []byte) (int, error) { return p.written.Write(b) }
func (p *pipeEnd) Close() error                { return nil }
func (p *pipeEnd) CloseWrite() error           { p.half = true; return nil }

func TestNewStackCompletion(t *testing.T) {
	svc := NewStack().Limit(1).Service(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		rec := httptest.NewRecorder()
		rec.WriteHeader(http.StatusNoContent)
		return rec.Result(), nil
	}))
	for range 3 { // the response has no body to close
		_, err := svc.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
	}
}

// halfCloser is a connection that can close its sending half.
type halfCloser interface{ CloseWrite() error }
