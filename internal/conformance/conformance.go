// Package conformance selects how extensive layertest's checks are in this module's tests.
package conformance

import "os"

var shortened bool //nolint:gochecknoglobals // set by TestMain alone

// Shorten selects the short form, in which the checks make fewer calls, unless the environment
// variable GOTOWER_TESTS is "full". Only TestMain calls it. Other modules always run the full form.
func Shorten() {
	shortened = os.Getenv("GOTOWER_TESTS") != "full" //nolint:forbidigo // it selects a form of tests
}

// Short reports whether the checks run in their short form, with fewer rounds.
func Short() bool { return shortened }
