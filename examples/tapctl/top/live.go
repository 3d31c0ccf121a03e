package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// How often the table is shown: on a terminal, and where it is a log.
const (
	Refresh  = 100 * time.Millisecond
	Interval = 5 * time.Second
)

// Live shows the table on out until ctx ends: on a terminal in place, anywhere
// else again every few seconds. header, if there is one, stands above it.
func Live(ctx context.Context, out *os.File, t *Table, header string) error {
	every, show := Interval, func() error { return log(out, t, header) }
	if term.IsTerminal(int(out.Fd())) {
		fmt.Fprint(out, enterScreen)
		defer fmt.Fprint(out, leaveScreen)
		every, show = Refresh, func() error { return redraw(out, t, header) }
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := show(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// The control sequences of a terminal that Live uses.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // other screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func redraw(out *os.File, t *Table, header string) error {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil {
		width, height = 0, 0
	}
	var b strings.Builder
	if header != "" {
		b.WriteString(header + "\n\n")
	}
	lines := strings.Count(b.String(), "\n")
	if err := Write(&b, t.Rows(), width, max(2, height-lines-1)); err != nil {
		return err
	}
	_, err = io.WriteString(out, home+strings.ReplaceAll(b.String(), "\n", clearLine+"\r\n")+clearBelow)
	return err
}

func log(out io.Writer, t *Table, header string) error {
	rows := t.Rows()
	if len(rows) == 0 {
		return nil // a table of nothing tells nothing
	}
	if header != "" {
		fmt.Fprintln(out, header)
	}
	if err := Write(out, rows, 0, 0); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}
