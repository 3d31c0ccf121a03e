package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// Refresh is how often a table on a terminal is updated by default. If the output is not a
// terminal, each update prints a new table, and the default interval is Interval.
const (
	Refresh  = 500 * time.Millisecond
	Interval = 5 * time.Second

	least = 100 * time.Millisecond // smallest interval of requests
)

// Columns selects a table's columns. The zero Columns selects those that the command `linkerd viz
// top` shows.
type Columns struct {
	HideSources bool // combine rows that differ by source only
	Routes      bool // show rows by route; Config.Request must set ByRoute, too
	Wide        bool // adds quantiles, rates and open requests
}

// Config configures a table and the processes to watch. The zero value names no processes.
type Config struct {
	Columns

	Title     string // about the table, in one line
	Note      string // lines above the table, if the screen is high enough
	Processes []tap.Process
	Source    Source            // replaces Processes; nil means Processes
	Request   *tappb.TopRequest // the request to each process; its Every and Rows are ignored
	MaxRPS    int               // maximum requests per second of all processes; 0 means 100
	Every     time.Duration     // interval of updates; 0 means Refresh or Interval

	// Advise is called with each error before the error is shown. It returns the error with
	// advice for the user added. nil means that errors are shown unchanged.
	Advise func(error) error

	// Warn is called with each single process's error, unless the table is interactive. If all of
	// Processes reject the request, Warn is not called for the last rejection, because Live and
	// Collect return the rejections. nil means that single processes' errors are ignored.
	Warn func(error)
}

// Source is a set of processes to watch. Unlike a slice of processes, it may change.
type Source interface {
	// Watch yields the events about requests that match req, and single processes' errors, which
	// do not end the sequence. maxRPS limits the requests per second over all processes.
	Watch(ctx context.Context, req *tappb.WatchRequest, maxRPS int) iter.Seq2[tap.ProcessEvent, error]

	// Top yields the rows of all processes, added up, and errors as Watch does.
	Top(ctx context.Context, req *tappb.TopRequest, maxRPS int) iter.Seq2[*tappb.TopResponse, error]
}

// Processes is a [Source] with a fixed set of processes.
type Processes []tap.Process

// Watch yields the events about requests that match req, as [Source] requires. Each process gets
// an equal part of the rate maxRPS.
func (p Processes) Watch(ctx context.Context, req *tappb.WatchRequest, maxRPS int) iter.Seq2[tap.ProcessEvent, error] {
	req = proto.CloneOf(req)
	req.MaxRps = PerProcess(maxRPS, len(p))
	return tap.Follow(ctx, p, req)
}

// Top yields the rows of all processes, added up, as [Source] requires.
func (p Processes) Top(ctx context.Context, req *tappb.TopRequest, maxRPS int) iter.Seq2[*tappb.TopResponse, error] {
	return tap.FollowTop(ctx, p, req)
}

// source returns the field Source, or the field Processes as a Source if Source is nil.
func (c *Config) source() Source {
	if c.Source != nil {
		return c.Source
	}
	return Processes(c.Processes)
}

// advised returns err with advice for the user, if Advise is set.
func (c *Config) advised(err error) error {
	if c.Advise != nil {
		return c.Advise(err)
	}
	return err
}

// Live shows the table on out until ctx ends or the user quits, and returns the last rows.
// On a terminal the table is interactive. Elsewhere Live prints the table once per c.Every,
// by default every 5 s. It returns an error if all processes have rejected c.Request.
func Live(ctx context.Context, out *os.File, c Config) ([]*tappb.Row, error) {
	if OnScreen(out) {
		return onScreen(ctx, out, c)
	}
	return printed(ctx, out, c)
}

// OnScreen reports whether Live is interactive on out. This is the case if out is a
// terminal and the environment variable TERM is not "dumb".
func OnScreen(out *os.File) bool {
	return term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
}

// Collect counts requests until ctx ends, and returns the last rows. It updates the rows every
// 500 ms, or more often if ctx ends within 5 s. It returns an error if all processes have
// rejected c.Request.
func Collect(ctx context.Context, c Config) ([]*tappb.Row, error) {
	return c.each(ctx, often(ctx, Refresh), func(*tappb.TopResponse) error { return nil })
}

// often returns how often to update. If ctx carries a deadline, that is a tenth of the remaining
// time, but at least 100 ms and at most maximum. Without a deadline, it is maximum.
func often(ctx context.Context, maximum time.Duration) time.Duration {
	// Short runs are updated more often, so that the last update is near the end.
	if end, ok := ctx.Deadline(); ok {
		maximum = max(least, min(maximum, time.Until(end)/10))
	}
	return maximum
}

// printed prints the table to out once per c.Every, and returns the last rows. It updates the rows
// more often than it prints them, so that each printed table is recent.
func printed(ctx context.Context, out io.Writer, c Config) ([]*tappb.Row, error) {
	every := cmp.Or(c.Every, Interval)
	next := time.Now().Add(every)
	// The processes send updates more often than tables are printed.
	return c.each(ctx, often(ctx, min(every, Refresh)), func(answer *tappb.TopResponse) error {
		rows := answer.GetRows()
		if len(rows) == 0 || time.Now().Before(next) {
			return nil // an empty table is not printed
		}
		// The next time is counted from the planned one, so that delays do not add up.
		next = next.Add(every)
		if c.Note != "" {
			fmt.Fprintln(out, c.Note)
		}
		if err := Write(out, rows, c.Columns); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out)
		return err
	})
}

// each calls show for every update of the rows, and returns the last update's rows. It returns
// when ctx ends, when show returns an error, or when the sequence of updates ends. In the last
// case, it also returns the errors with which processes rejected the request.
func (c *Config) each(ctx context.Context, every time.Duration, show func(*tappb.TopResponse) error) ([]*tappb.Row, error) {
	var rows []*tappb.Row
	var refused []error
	for answer, err := range c.answers(ctx, every) {
		// The order matters: when ctx ends, all streams fail, which is no error.
		switch {
		case ctx.Err() != nil:
			return rows, nil
		case err != nil:
			err = c.advised(err)
			if Refused(err) {
				refused = append(refused, err)
			}
			// The last rejection of a fixed set of processes ends the sequence, and all are returned then. A Source
			// may still get other processes.
			if c.Warn != nil && (c.Source != nil || len(refused) < len(c.Processes)) {
				c.Warn(err)
			}
		default:
			rows = answer.GetRows()
			if err := show(answer); err != nil {
				return rows, err
			}
		}
	}
	return rows, errors.Join(refused...)
}

// Refused reports whether err is a permanent rejection of a request by a process:
// InvalidArgument, PermissionDenied or Unauthenticated. The request is not sent to that
// process again.
func Refused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}

// answers yields the current rows of all processes, added up, once per interval every.
func (c *Config) answers(ctx context.Context, every time.Duration) iter.Seq2[*tappb.TopResponse, error] {
	req := &tappb.TopRequest{}
	if c.Request != nil {
		req = proto.CloneOf(c.Request)
	}
	const all = 1000 // the number of rows that a process counts
	req.Every = durationpb.New(every)
	// More rows than a screen has are needed, because the user may filter and sort them.
	req.Rows = all
	return c.source().Top(ctx, req, c.MaxRPS)
}
