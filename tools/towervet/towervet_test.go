package main

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

func Test(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), readyForward, "a")
	analysistest.Run(t, analysistest.TestData(), readyCall, "b")
	analysistest.Run(t, analysistest.TestData(), errCompare, "c")
}
