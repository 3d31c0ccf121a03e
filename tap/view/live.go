package view

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/tap/tappb"
)

// live produces the frames that all open pages share, while at least one page is open.
type live struct {
	config Config
	every  time.Duration // interval of frames

	runs share.Group[struct{}, *run] // the current run, if a page is open
}

// serveLive sends the stream "live" of a page: a hello with what does not change, and then a frame
// whenever there is a new one, until the client has left or the server shuts down.
func (h *Handler) serveLive(s *stream, r *http.Request) {
	current, leave := h.live.join()
	defer leave()
	if s.send("hello", hello{Title: text(h.config.Title), Started: h.started.UnixMilli(), Edition: h.edition}) != nil {
		return
	}
	// seen remembers what this page has got, because all pages share the frames.
	var seen share.Position
	for {
		f := current.frames.Look(&seen)
		if f.Fresh && s.raw("frame", f.Value) != nil {
			return
		}
		select {
		case <-f.Next:
		case <-r.Context().Done():
			return
		case <-h.down:
			return
		}
	}
}

// join returns the run that all open pages share, and starts it for the first page. A page must call
// leave when it closes; the last one stops the run's goroutines and waits for them.
func (l *live) join() (current *run, leave func()) {
	// There is one run for all pages, so the key is empty.
	return l.runs.Use(struct{}{}, func() (*run, func()) {
		ctx, cancel := context.WithCancel(context.Background())
		r := &run{config: l.config}
		var running sync.WaitGroup
		running.Go(func() { l.repeat(ctx, &r.noRoutes, r.countRoutes) })
		running.Go(func() { l.repeat(ctx, &r.noLatency, r.measure) })
		running.Go(func() { l.publish(ctx, r) })
		return r, func() {
			cancel()
			running.Wait()
		}
	})
}

// repeat calls f again and again until ctx ends, with a pause of l.every after each call. problem holds
// the error of the last call, for the page. It is cleared once f has run for l.every, because f then
// seems to work.
func (l *live) repeat(ctx context.Context, problem *problem, f func(context.Context) error) {
	for ctx.Err() == nil {
		cleared := make(chan struct{})
		timer := time.AfterFunc(l.every, func() {
			defer close(cleared)
			problem.set(nil)
		})
		err := panics.Do("the registry", func() error { return f(ctx) })
		// The timer's function must not clear the problem that is set below.
		if !timer.Stop() {
			<-cleared
		}
		problem.set(err)
		_ = backoff.Sleep(ctx, l.every)
	}
}

// publish sends a frame to all pages for each set of rows of the registry's Top, and frames without
// rows if Top fails. It returns when ctx ends.
func (l *live) publish(ctx context.Context, r *run) {
	req := &tappb.TopRequest{Every: durationpb.New(l.every), Rows: countedRows}
	for ctx.Err() == nil {
		err := panics.Do("the registry", func() error {
			for rsp, err := range l.config.Registry.Top(ctx, req) {
				if ctx.Err() != nil {
					break
				}
				if r.noRows.set(err); err != nil {
					break
				}
				r.send(r.frame(rsp))
			}
			return nil
		})
		if err != nil {
			r.noRows.set(err)
		}
		// The pages still get what works without Top.
		if ctx.Err() == nil && r.noRows.get() != "" {
			r.send(r.frame(nil))
		}
		_ = backoff.Sleep(ctx, l.every)
	}
}

// send makes f the latest frame, which all open pages read. A page that is slow skips earlier
// frames.
func (r *run) send(f frame) {
	if data, err := json.Marshal(f); err == nil { // numbers and text can always be encoded
		r.frames.Set(data)
	}
}
