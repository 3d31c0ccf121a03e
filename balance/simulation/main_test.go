package simulation

import (
	"flag"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

const tableFlag, resultsFlag = "table", "results"

func TestMain(m *testing.M) {
	flag.Bool(tableFlag, false, "run everything, and write SIMULATION.md")
	flag.String(resultsFlag, "", "a file of results, to continue an interrupted run")
	debug.SetGCPercent(800) // the heap is small
	goleak.VerifyTestMain(m)
}
