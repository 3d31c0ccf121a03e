package top

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// The following types are the messages that follower sends to the model.
type (
	rowsMsg struct{ answer *tappb.TopResponse }
	overMsg struct{ err error } // the sequence of rows has ended; err joins the rejections

	// newsMsg is an error from a process. number identifies the list of requests that the error
	// concerns. 0 means that the error concerns the rows.
	newsMsg struct {
		number int
		err    error
	}

	// seenMsg carries new events for the list of requests with this number.
	seenMsg struct {
		number int
		seen   []seenAt
		lost   int // number of events that were dropped, because they came too fast
	}
)

// seenAt is an event with the time at which it arrived.
type seenAt struct {
	tap.ProcessEvent

	at time.Time
}

// onScreen runs the interactive program until ctx ends, the user quits, or the sequence of
// rows ends. It returns the last rows. If all processes rejected c.Request, it also returns
// their errors.
func onScreen(ctx context.Context, out *os.File, c Config) ([]*tappb.Row, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The model uses f, and f sends to the program, which needs the model. So send is set last.
	f := &follower{ctx: ctx, config: c}
	m := newModel(c, f)
	p := tea.NewProgram(m, tea.WithOutput(out), tea.WithoutSignalHandler())
	f.send = p.Send
	f.running.Go(f.rows)
	// The program only ends by itself when the user quits.
	f.running.Go(func() {
		<-ctx.Done()
		p.Quit()
	})
	_, err := p.Run()
	// End the goroutines, which would otherwise send to a program that has ended.
	cancel()
	f.running.Wait()
	if err != nil {
		return nil, fmt.Errorf("the terminal: %w", err)
	}
	return m.latest.GetRows(), m.over
}

// follower watches the processes. It sends their rows and events as messages to the
// interactive program.
type follower struct {
	ctx     context.Context //nolint:containedctx // the run of the program
	config  Config
	send    func(tea.Msg)
	running sync.WaitGroup
}

// rows sends each update of the rows, and each process's error, to the program. It returns when f.ctx
// ends, or sends an overMsg when the sequence of updates ends earlier.
func (f *follower) rows() {
	c := f.config
	// each reports errors of single processes here.
	c.Warn = func(err error) { f.send(newsMsg{err: err}) }
	_, err := c.each(f.ctx, cmp.Or(c.Every, Refresh), func(answer *tappb.TopResponse) error {
		f.send(rowsMsg{answer})
		return nil
	})
	// Without the check, the message would end a program that is ending already.
	if f.ctx.Err() == nil {
		f.send(overMsg{err})
	}
}

// watch starts to watch the requests that match req. Goroutines send their events to the
// program, in messages with the given number, until stop is called.
func (f *follower) watch(number int, req *tappb.WatchRequest) (stop func()) {
	ctx, cancel := context.WithCancel(f.ctx)
	b := &batch{}
	// One goroutine receives events, and the other one sends them in batches.
	f.running.Go(func() {
		defer cancel()
		for event, err := range f.config.source().Watch(ctx, req, cmp.Or(f.config.MaxRPS, 100)) {
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				f.send(newsMsg{number, f.config.advised(err)})
			default:
				b.add(event)
			}
		}
	})
	// Redrawing the screen for each event would be too slow.
	f.running.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if events, lost := b.take(); len(events) > 0 {
					f.send(seenMsg{number, events, lost})
				}
			}
		}
	})
	return cancel
}

// batch collects the events that follower sends to the program in one message, ten times a
// second. After maxBatch events, it drops the further events of the message and counts them in
// the field lost.
type batch struct {
	mu   sync.Mutex
	seen []seenAt
	lost int
}

// maxBatch limits the memory for events of a tenth of a second.
const maxBatch = 10_000

// add adds an event, or counts it if there are too many.
func (b *batch) add(s tap.ProcessEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.seen) >= maxBatch {
		b.lost++
		return
	}
	b.seen = append(b.seen, seenAt{s, time.Now()})
}

// take returns the events since the last call, and how many were dropped.
func (b *batch) take() (events []seenAt, lost int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	events = b.seen
	lost = b.lost
	b.seen = nil
	b.lost = 0
	return events, lost
}
