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

// The default intervals: Refresh of updates on a terminal, Interval of prints elsewhere.
const (
	Refresh  = 500 * time.Millisecond
	Interval = 5 * time.Second

	least = 100 * time.Millisecond // smallest interval of requests
)

// Columns selects the columns of a table. The zero value means those of `linkerd viz
// top`.
type Columns struct {
	HideSources bool // combine rows that differ by source only
	Routes      bool // rows by route; the request must select them, too
	Wide        bool // adds quantiles, rates and open requests
}

// Config configures a table. The zero value has no processes.
type Config struct {
	Columns

	Title     string // of the table, in one line
	Note      string // lines above the table, if the screen is high enough
	Processes []tap.Process
	Request   *tappb.TopRequest // Every and Rows are replaced
	MaxRPS    int               // maximum requests per second of all processes; 0 means 100
	Every     time.Duration     // interval of updates; 0 means Refresh or Interval

	// Advise adds advice to an error. It may be nil.
	Advise func(error) error

	// Warn is called with errors that are not returned, if the output is not a
	// terminal. It may be nil.
	Warn func(error)
}

func (c *Config) advised(err error) error {
	if c.Advise != nil {
		return c.Advise(err)
	}
	return err
}

// Live shows the table on out until ctx ends, the user quits, or all processes have
// rejected the request, which is an error. On a terminal it is interactive. Elsewhere
// it prints the table every few seconds. It returns the last rows.
func Live(ctx context.Context, out *os.File, c Config) ([]*tappb.Row, error) {
	if OnScreen(out) {
		return onScreen(ctx, out, c)
	}
	return printed(ctx, out, c)
}

// OnScreen reports whether out is a terminal on which Live is interactive.
func OnScreen(out *os.File) bool {
	return term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
}

// Collect returns the rows at the end of ctx. They are older by at most a tenth of its
// time, or by half a second. If all processes have rejected the request, it returns an
// error.
func Collect(ctx context.Context, c Config) ([]*tappb.Row, error) {
	return c.each(ctx, often(ctx, Refresh), func(*tappb.TopResponse) error { return nil })
}

// often returns the interval of updates: most, or a tenth of the time until the end of
// ctx if that is shorter.
func often(ctx context.Context, most time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		most = max(least, min(most, time.Until(end)/10))
	}
	return most
}

// printed prints the table once per interval. Updates are more frequent than prints.
func printed(ctx context.Context, out io.Writer, c Config) ([]*tappb.Row, error) {
	every := cmp.Or(c.Every, Interval)
	next := time.Now().Add(every)
	return c.each(ctx, often(ctx, min(every, Refresh)), func(answer *tappb.TopResponse) error {
		rows := answer.GetRows()
		if len(rows) == 0 || time.Now().Before(next) {
			return nil // an empty table is not printed
		}
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

// each calls show for every update, until ctx ends or no process is left. It returns the
// rows of the last update.
func (c *Config) each(ctx context.Context, every time.Duration, show func(*tappb.TopResponse) error) ([]*tappb.Row, error) {
	var rows []*tappb.Row
	var refused []error
	for answer, err := range c.answers(ctx, every) {
		switch {
		case ctx.Err() != nil:
			return rows, nil
		case err != nil:
			err = c.advised(err)
			if Refused(err) {
				refused = append(refused, err)
			}
			if c.Warn != nil && len(refused) < len(c.Processes) { // the last one is returned
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

// Refused reports whether a process rejected the request permanently, so that it
// is not asked again.
func Refused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}

// answers yields the updates of all processes.
func (c *Config) answers(ctx context.Context, every time.Duration) iter.Seq2[*tappb.TopResponse, error] {
	req := &tappb.TopRequest{}
	if c.Request != nil {
		req = proto.CloneOf(c.Request)
	}
	const all = 1000 // the number of rows that a process counts
	req.Every, req.Rows = durationpb.New(every), all
	return tap.FollowTop(ctx, c.Processes, req, tap.WithMaxRPS(c.MaxRPS))
}
