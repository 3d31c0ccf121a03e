package view

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// serveTap sends requests as they happen, those that the query asks for, until
// the client or the server goes. What goes wrong is told as an event: a script
// cannot read the body of a response that is an error.
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
		for e, err := range h.config.Registry.Watch(ctx, f.WatchRequest) {
			if err != nil {
				failure.set(err)
				return
			}
			if !f.leavesOut(&e) {
				j.add(&e, time.Now())
			}
		}
	})
	if h.tell(ctx, s, &j, done) != nil {
		return
	}
	if why := failure.get(); why != "" && ctx.Err() == nil {
		_ = s.send("problem", problemEvent{why})
	}
}

type problemEvent struct {
	Text string `json:"text"`
}

// tell sends batches until there will be no more, the first at once. An error
// is that of the client.
func (h *Handler) tell(ctx context.Context, s *stream, j *joiner, done <-chan struct{}) error {
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
