package simulation

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

const tableFlag = "table"

func TestMain(m *testing.M) {
	flag.Bool(tableFlag, false, "run everything, and write SIMULATION.md and simulation.svg")
	goleak.VerifyTestMain(m)
}
