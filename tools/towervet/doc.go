// Towervet finds three mistakes in code that uses gotower's services. Tests usually miss them,
// because they show only under load or after an error:
//
//	readyforward  the Ready of a wrapper ignores the wrapped service, so a
//	              caller waits without effect
//	readycall         Ready (or layer.Poll) and then Call on one service in one
//	              block: Ready reserves nothing; use a layer.Queue
//	errcompare    == or != with an error of package layer: such errors are
//	              wrapped, so use errors.Is
//
// Run it as a vet tool:
//
//	go -C tools install ./towervet
//	go vet -vettool="$(go env GOPATH)/bin/towervet" ./...
package main

import "golang.org/x/tools/go/analysis/multichecker"

func main() {
	multichecker.Main(readyForward, readyCall, errCompare)
}
