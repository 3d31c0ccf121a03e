package kube

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// retryDelay is the shortest pause before a request is repeated because the API server did not
// answer. The longest is twice that.
const retryDelay = time.Second

// patient is a transport that repeats GET requests until the API server answers or the request's
// context ends. With it, informers notice within seconds that the API server is back. On their
// own they back off for up to a minute.
type patient struct {
	next http.RoundTripper
	log  *slog.Logger
	away atomic.Bool // the outage was logged, and its end will be
}

// RoundTrip implements [http.RoundTripper]. It repeats a GET request after each transport error
// until the request's context ends. Other requests are sent once.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		rsp, err := p.next.RoundTrip(req)
		if err == nil {
			// Swap returns the previous value, so the end of an outage is logged once.
			if p.away.Swap(false) {
				p.log.Info("the API server answers again")
			}
			return rsp, nil
		}
		// Repeating a write might apply it twice.
		if req.Method != http.MethodGet || req.Context().Err() != nil {
			return nil, err
		}
		// The beginning of an outage is logged once.
		if !p.away.Swap(true) {
			p.log.Warn("the API server does not answer, the last objects are served", "err", err)
		}
		select {
		case <-req.Context().Done():
			return nil, err
		// The random part spreads the requests of many informers.
		case <-time.After(retryDelay + rand.N(retryDelay)):
		}
	}
}

// WrappedRoundTripper returns the transport that p wraps, as client-go expects.
func (p *patient) WrappedRoundTripper() http.RoundTripper { return p.next }
