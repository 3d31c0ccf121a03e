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
	"github.com/gotower/gotower/tap/tappb"
)

// live computes the data that all open pages share, while at least one page is open.
type live struct {
	config Config
	every  time.Duration // between two frames

	mu    sync.Mutex
	pages map[chan []byte]struct{}
	end   func() // stops the goroutines of the current run
}

// serveLive sends frames until the client or the server ends the stream.
func (h *Handler) serveLive(s *stream, r *http.Request) {
	frames, leave := h.live.join()
	defer leave()
	if s.send("hello", hello{Title: text(h.config.Title), Started: h.started.UnixMilli(), Edition: h.edition}) != nil {
		return
	}
	for {
		select {
		case f := <-frames:
			if s.raw("frame", f) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.down:
			return
		}
	}
}

// join adds a page and returns its frames. A frame that the page does not read in time is dropped.
func (l *live) join() (frames <-chan []byte, leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	page := make(chan []byte, 1)
	if l.pages == nil {
		l.pages = map[chan []byte]struct{}{}
	}
	l.pages[page] = struct{}{}
	if l.end == nil {
		l.begin()
	}
	return page, func() { l.leave(page) }
}

// leave removes a page. After the last one it stops the run and waits for its end.
func (l *live) leave(page chan []byte) {
	l.mu.Lock()
	delete(l.pages, page)
	var end func()
	if len(l.pages) == 0 {
		end, l.end = l.end, nil
	}
	l.mu.Unlock()
	if end != nil {
		end()
	}
}

func (l *live) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{config: l.config}
	var running sync.WaitGroup
	running.Go(func() { l.repeat(ctx, &r.noRoutes, r.countRoutes) })
	running.Go(func() { l.repeat(ctx, &r.noLatency, r.measure) })
	running.Go(func() { l.publish(ctx, r) })
	l.end = func() {
		cancel()
		running.Wait()
	}
}

// repeat calls f until ctx ends, with a pause between calls. It stores the error of f
// in problem, and clears it when a call has lasted l.every.
func (l *live) repeat(ctx context.Context, problem *problem, f func(context.Context) error) {
	for ctx.Err() == nil {
		cleared := make(chan struct{})
		timer := time.AfterFunc(l.every, func() {
			defer close(cleared)
			problem.set(nil)
		})
		err := panics.Do("the registry", func() error { return f(ctx) })
		if !timer.Stop() {
			<-cleared
		}
		problem.set(err)
		_ = backoff.Sleep(ctx, l.every)
	}
}

// publish counts requests and sends a frame with each count. If requests cannot be
// counted, it sends frames with the layers.
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
				l.send(r.frame(rsp))
			}
			return nil
		})
		if err != nil {
			r.noRows.set(err)
		}
		if ctx.Err() == nil && r.noRows.get() != "" {
			l.send(r.frame(nil))
		}
		_ = backoff.Sleep(ctx, l.every)
	}
}

func (l *live) send(f frame) {
	data, err := json.Marshal(f)
	if err != nil {
		return // numbers and text can always be encoded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for page := range l.pages {
		select { // the channel has room, because this is the only sender
		case <-page:
		default:
		}
		page <- data
	}
}
