package view

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// serveTap sends the requests that match the query of r, until the client or the server
// ends the stream. Errors are sent as events, because a script cannot read the body of an
// error response.
func (h *Handler) serveTap(s *stream, r *http.Request) {
	f, err := readFilter(r.URL.RawQuery)
	if err != nil {
		_ = s.send("problem", problemEvent{text(err.Error())})
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	var j joiner
	var failure problem
	done := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		defer close(done)
		failure.set(panics.Do("the registry", func() error {
			for e, err := range h.config.Registry.Watch(ctx, f.WatchRequest) {
				if err != nil {
					return err
				}
				if !f.omits(&e) {
					j.add(&e, time.Now())
				}
			}
			return nil
		}))
	})
	if h.sendBatches(ctx, s, &j, done) != nil {
		return
	}
	if why := failure.get(); why != "" && ctx.Err() == nil {
		_ = s.send("problem", problemEvent{why})
	}
}

type problemEvent struct {
	Text string `json:"text"`
}

// sendBatches sends a batch of j at once, then one at each interval h.batchEvery, and a last one
// when done is closed. It skips a batch without changes, unless the last batch was sent h.beatEvery
// ago. It returns an error if a batch cannot be sent, if ctx ends, or if the server shuts down.
func (h *Handler) sendBatches(ctx context.Context, s *stream, j *joiner, done <-chan struct{}) error {
	before := j.take()
	if err := s.send("batch", before); err != nil {
		return err
	}
	ticker := time.NewTicker(h.batchEvery)
	defer ticker.Stop()
	var quiet time.Duration
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-h.down:
			return http.ErrServerClosed
		case <-done:
			return s.send("batch", j.take())
		}
		b := j.take()
		quiet += h.batchEvery
		if len(b.Records) == 0 && b.Skipped == before.Skipped && b.Dropped == before.Dropped && quiet < h.beatEvery {
			continue
		}
		before, quiet = b, 0
		if err := s.send("batch", b); err != nil {
			return err
		}
	}
}
