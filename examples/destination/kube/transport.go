package kube

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// retryDelay is the minimum time between two attempts of a request to an API server that
// does not answer. The maximum is twice as long.
const retryDelay = time.Second

// patient is a transport that repeats a GET request until the API server answers or the
// context of the request ends. Informers then notice within seconds that the API server is
// available again. Without patient they may wait a minute, which is their maximum backoff.
type patient struct {
	next http.RoundTripper
	log  *slog.Logger
	away atomic.Bool
}

// RoundTrip sends req. If req is a GET request, it repeats req after each transport error
// until the context of req ends. It is part of [http.RoundTripper].
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		rsp, err := p.next.RoundTrip(req)
		if err == nil {
			if p.away.Swap(false) {
				p.log.Info("the API server answers again")
			}
			return rsp, nil
		}
		if req.Method != http.MethodGet || req.Context().Err() != nil {
			return nil, err
		}
		if !p.away.Swap(true) {
			p.log.Warn("the API server does not answer, the last objects are served", "err", err)
		}
		select {
		case <-req.Context().Done():
			return nil, err
		case <-time.After(retryDelay + rand.N(retryDelay)):
		}
	}
}

// WrappedRoundTripper returns the transport that p wraps, as client-go expects.
func (p *patient) WrappedRoundTripper() http.RoundTripper { return p.next }
