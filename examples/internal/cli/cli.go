// Package cli parses the command lines of the example programs, handles their signals, and
// determines their exit status.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// The exit codes of a failure and of a wrong command line.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Interrupted returns a context that an interrupt or SIGTERM ends. A second signal ends
// the program at once. stop restores the signals and ends the context.
func Interrupted() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// misuse marks an error as a mistake in the command line.
type misuse struct{ error }

func (m misuse) Error() string { return m.error.Error() + "; see -help" }
func (m misuse) Unwrap() error { return m.error }

// Misuse marks err as a mistake in the command line.
func Misuse(err error) error { return misuse{err} }

// Parse parses args, which must be flags. The error of a mistake is marked by [Misuse] and
// not printed. If help is requested, Parse writes it and returns [flag.ErrHelp].
func Parse(f *flag.FlagSet, args []string, help io.Writer) error {
	f.SetOutput(io.Discard) // Status prints the error
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(help)
		f.Usage()
		return err
	case err != nil:
		return Misuse(err)
	case f.NArg() > 0:
		return Misuse(fmt.Errorf("%q: arguments must be flags", f.Arg(0)))
	}
	return nil
}

// Status writes the error of a program and returns its exit status: 0 for nil and
// [flag.ErrHelp], 2 for a wrong command line, 1 for other errors.
func Status(stderr io.Writer, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, err)
	if errors.As(err, new(misuse)) {
		return exitUsage
	}
	return exitFailed
}
