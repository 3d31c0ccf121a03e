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

// A custom layer embeds the inner service and overrides Call.

// authenticated rejects requests without the token.
type authenticated struct {
	httplayer.Service

	header string // required value of Authorization
}

// bearer is a layer that requires a bearer token. It removes the token from the request,
// so that the backends do not receive it.
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

// explanations has the explanations of the last requests that asked for one.
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

// latest returns the explanations, the latest first.
func (e *explanations) latest() []explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.kept)
}
