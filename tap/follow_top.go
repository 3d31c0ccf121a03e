package tap

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc/codes"

	streams "github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/tap/tappb"
)

// FollowTop yields the rows of several processes as those of one, every so
// often as req says, and goes on when one of them restarts, appears late or
// cannot be reached. Errors are news, as those of [Follow].
//
// Rows that are alike are added up. The quantiles of such a row are the highest
// of those it is made of, so that the true ones are no worse; its Last is of one
// of them. A process stands for the client of its outbound requests where that
// is not known, and for the server of its inbound ones. The rows of a process
// are left out while it cannot be reached, and begin anew when it restarted.
//
// For a process that has linkerd's tap only, requests are counted here, from
// its events: [WithMaxRPS] bounds how many are seen, and so the rate. Its rows stay
// while it cannot be reached, as long as [RowTTL] says. Conditions on headers
// are refused then.
func FollowTop(
	ctx context.Context, processes []Process, req *tappb.TopRequest, opts ...FollowOption,
) iter.Seq2[*tappb.TopResponse, error] {
	o := newFollowOptions(opts)
	return func(yield func(*tappb.TopResponse, error) bool) {
		every, err := everyOf(req)
		if err != nil {
			yield(nil, refuse(codes.InvalidArgument, err))
			return
		}
		f := &topFollower{
			followOptions: o, req: req, every: every, rows: NewRows(req, o.keepRows),
			latest: make([]*tappb.TopResponse, len(processes)), running: len(processes),
		}
		if f.follow(ctx, processes, yield) && ctx.Err() != nil {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

type topFollower struct {
	followOptions
	req   *tappb.TopRequest
	every time.Duration
	rows  *Rows // of processes that do not count

	names   []string
	latest  []*tappb.TopResponse // of each process; nil while it is not heard
	running int                  // processes that are still asked
}

// topNews is something that happened to the process with this number.
type topNews struct {
	process int
	rows    *tappb.TopResponse
	gone    bool // and will not be asked again
	tick    bool // it is time for an answer
}

// follow returns false when yield did.
func (f *topFollower) follow(ctx context.Context, processes []Process, yield func(*tappb.TopResponse, error) bool) bool {
	if len(processes) == 0 {
		return true
	}
	all := []source[topNews]{f.clock}
	for i, p := range processes {
		f.names = append(f.names, p.Name)
		all = append(all, func(ctx context.Context) iter.Seq2[topNews, error] { return f.one(ctx, i, p, len(processes)) })
	}
	for news, err := range merged(ctx, all) {
		if news.tick {
			if !yield(f.merge(), nil) {
				return false
			}
			continue
		}
		f.latest[news.process] = news.rows
		if err != nil && !yield(nil, err) {
			return false
		}
		if news.gone {
			f.running--
		}
		if f.running == 0 {
			return true
		}
	}
	return true
}

func (f *topFollower) clock(ctx context.Context) iter.Seq2[topNews, error] {
	return func(yield func(topNews, error) bool) {
		answers := time.NewTicker(f.every)
		defer answers.Stop()
		samples := time.NewTicker(sampleEvery)
		defer samples.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-samples.C:
				f.rows.sample(now)
			case <-answers.C:
				if !yield(topNews{tick: true}, nil) {
					return
				}
			}
		}
	}
}

// one asks one process again and again.
func (f *topFollower) one(ctx context.Context, i int, p Process, of int) iter.Seq2[topNews, error] {
	open := func(ctx context.Context) iter.Seq2[*tappb.TopResponse, error] {
		conn := prompt{ClientConnInterface: p.Conn, patience: f.patience, between: f.every}
		return instead(Top(ctx, conn, f.req), f.count(ctx, p, of))
	}
	return func(yield func(topNews, error) bool) {
		for rows, err := range streams.Reconnect(ctx, f.backoff, open, isFinal) {
			if err != nil {
				err = fmt.Errorf("%s: %w", p.Name, err)
			}
			if !yield(topNews{process: i, rows: rows}, err) {
				return
			}
		}
		yield(topNews{process: i, gone: true}, nil)
	}
}

// count counts the events of a process that does not count. It yields no rows
// but an error.
func (f *topFollower) count(ctx context.Context, p Process, of int) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		if len(f.req.GetHeaders()) > 0 {
			what := beyondLinkerd(&tappb.WatchRequest{Headers: f.req.GetHeaders()})
			yield(nil, refuse(codes.InvalidArgument, fmt.Errorf("this process has linkerd's tap only, which has no %s", what)))
			return
		}
		w := f.windows(prompt{ClientConnInterface: p.Conn, patience: f.patience}, of, f.req.GetMatch(), false)
		w.lost = func(id StreamID) { f.rows.Forget(p.Name, id) }
		heard := false
		for e, err := range w.all(ctx) {
			// The first event is told of, so that the process counts as well.
			if (err != nil || !heard) && !yield(nil, err) || err != nil {
				return
			}
			heard = true
			f.rows.Add(p.Name, e)
		}
	}
}

// merge is the rows of all.
func (f *topFollower) merge() *tappb.TopResponse {
	m := newMerging()
	m.byDestination = f.req.GetByDestination()
	for i, rows := range f.latest {
		m.add(f.names[i], rows)
	}
	m.add("", f.rows.answer(maxRows+1))
	return m.top(f.req.GetRows())
}
