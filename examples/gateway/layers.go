package main

import (
	"context"
	"crypto/subtle"
	"net/http"
	"slices"
	"sync"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// A layer of one's own embeds the service it stands on, and overrides Call.

// authenticated lets requests through that have the token.
type authenticated struct {
	httplayer.Service

	header string // what Authorization must be
}

// bearer is a layer that wants a bearer token. It takes it off the request: the
// backends are not to know it.
func bearer(token string) layer.Layer[*http.Request, *http.Response] {
	return func(next httplayer.Service) httplayer.Service {
		return &authenticated{Service: next, header: "Bearer " + token}
	}
}

func (a *authenticated) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if subtle.ConstantTimeCompare([]byte(req.Header.Get("Authorization")), []byte(a.header)) != 1 {
		return nil, &httplayer.StatusError{Code: http.StatusUnauthorized}
	}
	req = req.Clone(ctx)
	req.Header.Del("Authorization")
	return a.Service.Call(ctx, req)
}

// explanations keeps those of the last few requests that asked for one.
type explanations struct {
	mu   sync.Mutex
	kept []explanation
}

type explanation struct {
	Request string
	Why     *layer.Explanation
}

const keptExplanations = 5

func (e *explanations) layer(next httplayer.Service) httplayer.Service {
	return &explained{Service: next, to: e}
}

type explained struct {
	httplayer.Service

	to *explanations
}

func (e *explained) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if req.Header.Get("X-Explain") == "" {
		return e.Service.Call(ctx, req)
	}
	ctx, why := layer.Explain(ctx)
	e.to.keep(explanation{req.Method + " " + req.URL.Path, why})
	return e.Service.Call(ctx, req)
}

func (e *explanations) keep(one explanation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = append([]explanation{one}, e.kept...)
	e.kept = e.kept[:min(len(e.kept), keptExplanations)]
}

// latest returns them, the last one first.
func (e *explanations) latest() []explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.kept)
}
