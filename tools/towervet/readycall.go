package main

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var readyCall = &analysis.Analyzer{
	Name: "readycall",
	Doc:  "report Ready followed by Call of the same service in one function",
	Run:  runReadyCall,
}

func runReadyCall(pass *analysis.Pass) (any, error) {
	for f := range productFuncs(pass) {
		checkFunc(pass, f.Body)
	}
	return nil, nil
}

// checkFunc looks at a function with all that is written inside it. An accept
// loop is what Ready is for, so one that accepts is left alone.
func checkFunc(pass *analysis.Pass, body *ast.BlockStmt) {
	asked := map[string]*ast.CallExpr{}
	var both []*ast.CallExpr
	accepts := false
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		accepts = accepts || s.Sel.Name == "Accept"
		t := pass.TypesInfo.TypeOf(s.X)
		if t == nil || !isService(t) {
			return true
		}
		on := types.ExprString(s.X)
		switch s.Sel.Name {
		case "Ready":
			asked[on] = call
		case "Call":
			if asked[on] != nil {
				both = append(both, asked[on])
				delete(asked, on)
			}
		}
		return true
	})
	if accepts {
		return
	}
	for _, call := range both {
		pass.Reportf(call.Pos(), "Ready reserves nothing for the Call that follows: "+
			"call at once, and put a layer.Queue where requests should wait")
	}
}
