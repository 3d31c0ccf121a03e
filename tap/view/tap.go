package view

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// serveTap sends the stream "tap" of a page: batches of the requests that match the query of r, until
// the client has left or the server shuts down. Errors are sent as events, because the page's script
// cannot read the body of an error response.
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
	// cancel is deferred last and so runs first, which ends the goroutine that Wait waits for.
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

// problemEvent tells the page why the stream failed.
type problemEvent struct {
	Text string `json:"text"`
}

// sendBatches sends a batch of j immediately, then one per h.batchEvery, and a last one when done is
// closed. A batch without changes is skipped, but after h.beatEvery one is sent all the same, because
// only a write finds out that the client has left. sendBatches returns an error if a write fails, ctx
// ends or the server shuts down.
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
		// quiet is how long nothing was sent.
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
