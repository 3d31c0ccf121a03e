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

// live computes the frames that all open pages share. It runs only while at least one page
// is open.
type live struct {
	config Config
	every  time.Duration // interval of frames

	mu    sync.Mutex
	pages map[chan []byte]struct{}
	end   func() // stops the goroutines of the current run; nil without pages
}

// serveLive sends one hello and then frames, until the client or the server ends the
// stream.
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

// join adds a page and returns the channel of its frames. The caller must call leave. The
// channel holds one frame. The next frame replaces it if the page has not read it.
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

// leave removes a page. If it was the last one, leave stops the goroutines of the run and
// waits for them.
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

// repeat calls f repeatedly until ctx ends, with a pause of l.every between calls. It
// stores the error of f in problem. It clears problem when a call has lasted for l.every,
// because f only returns on failure.
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

// publish counts the requests, and sends a frame to all pages at intervals. If requests
// cannot be counted, the frames have no rows. It returns when ctx ends.
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
