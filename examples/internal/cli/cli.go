// Package cli is how the programs of the examples read their command lines,
// hear that they are to end, and end.
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

// The exit codes of who failed, and of who was asked wrongly.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Interrupted returns a context that an interrupt, or SIGTERM, ends. A second
// signal ends the program at once, whatever it waits for: a grace, or somebody who
// does not read. stop lets go of the signals, and ends the context.
func Interrupted() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// misuse is a mistake in the command line.
type misuse struct{ error }

func (m misuse) Error() string { return m.error.Error() + "; see -help" }
func (m misuse) Unwrap() error { return m.error }

// Misuse marks err as a mistake in the command line.
func Misuse(err error) error { return misuse{err} }

// Parse reads args, which are flags and nothing else. A mistake is an error that
// [Misuse] made, and was not printed yet. If help is asked for it is written, and
// the error is [flag.ErrHelp].
func Parse(f *flag.FlagSet, args []string, help io.Writer) error {
	f.SetOutput(io.Discard) // mistakes are told once, at the end
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(help)
		f.Usage()
		return err
	case err != nil:
		return Misuse(err)
	case f.NArg() > 0:
		return Misuse(fmt.Errorf("%q is no flag", f.Arg(0)))
	}
	return nil
}

// Status writes what a program came to, and returns its exit status: 0 if err is
// nil or says that help was given, 2 if the command line was wrong, 1 else.
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
