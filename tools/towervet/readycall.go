package main

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

var readyCall = &analysis.Analyzer{
	Name: "readycall",
	Doc:  "report Ready (or layer.Poll) followed by Call of the same service in one block",
	Run:  runReadyCall,
}

// runReadyCall checks all functions of the package, except those of tests.
func runReadyCall(pass *analysis.Pass) (any, error) {
	for f := range productFuncs(pass) {
		checkFunc(pass, f.Body)
	}
	return nil, nil
}

// checkFunc checks body and its function literals, block by block, for Ready followed by Call. If
// body calls a function named Accept, only the literals are checked: an accept loop should ask
// Ready first, because it must not accept a connection that it cannot serve.
func checkFunc(pass *analysis.Pass, body *ast.BlockStmt) {
	var blocks [][]ast.Stmt
	accepts := false
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			// The literal runs at another time, so it is checked on its own, and its Accept does not count here.
			checkFunc(pass, n.Body)
			return false
		case *ast.CallExpr:
			callee := typeutil.Callee(pass.TypesInfo, n)
			accepts = accepts || callee != nil && callee.Name() == "Accept"
		// Every list of statements is a block of its own, also in the cases of switch and select.
		case *ast.BlockStmt:
			blocks = append(blocks, n.List)
		case *ast.CaseClause:
			blocks = append(blocks, n.Body)
		case *ast.CommClause:
			blocks = append(blocks, n.Body)
		}
		return true
	})
	if accepts {
		return
	}
	for _, block := range blocks {
		checkBlock(pass, block)
	}
}

// checkBlock reports Ready or layer.Poll if a Call on the same service follows in block. A Call
// in a nested block is ignored, because it may depend on the result, as in a failover.
func checkBlock(pass *analysis.Pass, block []ast.Stmt) {
	var polls []*ast.CallExpr
	for _, stmt := range block {
		for _, call := range callsOf(stmt) {
			svc, method := serviceCall(pass.TypesInfo, call)
			switch {
			// A Ready that only chooses between services is allowed, as is a Poll whose result is not needed for what
			// follows.
			case method == "Ready" && !isFailover(stmt), method == "Poll" && decides(stmt):
				polls = append(polls, call)
			case method == "Call":
				polls = reportAsked(pass, polls, svc)
			}
		}
	}
}

// reportAsked reports the calls in polls that ask svc, because a Call on svc follows. It returns
// the others.
func reportAsked(pass *analysis.Pass, polls []*ast.CallExpr, svc ast.Expr) (rest []*ast.CallExpr) {
	for _, call := range polls {
		if polled, _ := serviceCall(pass.TypesInfo, call); !isSame(pass.TypesInfo, polled, svc) {
			rest = append(rest, call)
			continue
		}
		pass.Reportf(call.Pos(), "Ready reserves nothing for the Call that follows: "+
			"call at once, and put a layer.Queue where requests should wait")
	}
	return rest
}

// callsOf returns the calls in a statement, but not those in nested blocks and functions.
func callsOf(stmt ast.Stmt) (calls []*ast.CallExpr) {
	ast.Inspect(stmt, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.FuncLit:
			return false
		case *ast.CallExpr:
			calls = append(calls, n)
		}
		return true
	})
	return calls
}

// isFailover reports whether stmt is an if statement that ends with continue. In a loop over
// services, this skips one that is not ready.
func isFailover(stmt ast.Stmt) bool {
	last, isIf := lastOfIf(stmt)
	branch, ok := last.(*ast.BranchStmt)
	return isIf && ok && branch.Tok == token.CONTINUE
}

// decides reports whether a call in stmt may decide if the following statements run. It returns
// false only for an if statement that does not end with return, because what follows then runs in
// any case.
func decides(stmt ast.Stmt) bool {
	last, isIf := lastOfIf(stmt)
	_, returns := last.(*ast.ReturnStmt)
	return !isIf || returns
}

// lastOfIf returns the last statement in the body of the if statement stmt, which is nil for an empty body. isIf is
// false if stmt is another statement.
func lastOfIf(stmt ast.Stmt) (last ast.Stmt, isIf bool) {
	s, ok := stmt.(*ast.IfStmt)
	if !ok || len(s.Body.List) == 0 {
		return nil, ok
	}
	return s.Body.List[len(s.Body.List)-1], true
}

// serviceCall returns the service and the method's name if call is a method call on a service.
// For layer.Poll(s), it returns s and "Poll". For any other call, svc is nil.
func serviceCall(info *types.Info, call *ast.CallExpr) (svc ast.Expr, method string) {
	callee := typeutil.Callee(info, call)
	if callee == nil {
		return nil, ""
	}
	// Poll is a function, so its service is the argument and not the receiver.
	if callee.Name() == "Poll" && isLayers(callee) && len(call.Args) == 1 {
		return call.Args[0], "Poll"
	}
	s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return nil, ""
	}
	if t := info.TypeOf(s.X); t == nil || !isService(t) {
		return nil, ""
	}
	return s.X, callee.Name()
}

// isSame reports whether a and b are the same variable, or the same field or element in one.
func isSame(info *types.Info, a, b ast.Expr) bool {
	a = ast.Unparen(a)
	b = ast.Unparen(b)
	switch a := a.(type) {
	case *ast.Ident:
		b, ok := b.(*ast.Ident)
		return ok && info.ObjectOf(a) == info.ObjectOf(b)
	case *ast.SelectorExpr:
		b, ok := b.(*ast.SelectorExpr)
		return ok && info.ObjectOf(a.Sel) == info.ObjectOf(b.Sel) && isSame(info, a.X, b.X)
	case *ast.StarExpr:
		b, ok := b.(*ast.StarExpr)
		return ok && isSame(info, a.X, b.X)
	case *ast.IndexExpr:
		b, ok := b.(*ast.IndexExpr)
		return ok && isSame(info, a.X, b.X) && isSame(info, a.Index, b.Index)
	case *ast.BasicLit:
		b, ok := b.(*ast.BasicLit)
		return ok && a.Value == b.Value
	}
	return false
}
