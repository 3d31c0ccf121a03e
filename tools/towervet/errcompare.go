package main

import (
	"go/ast"
	"go/token"

	"golang.org/x/tools/go/analysis"
)

var errCompare = &analysis.Analyzer{
	Name: "errcompare",
	Doc:  "report == and != with the errors of package layer",
	Run:  runErrCompare,
}

func runErrCompare(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				return n.Recv == nil || n.Name.Name != "Is" // there, identity is meant
			case *ast.BinaryExpr:
				if (n.Op == token.EQL || n.Op == token.NEQ) && !isKind(n.X) && !isKind(n.Y) {
					reportCompared(pass, n.X, n.Y)
				}
			case *ast.SwitchStmt:
				if n.Tag == nil || isKind(n.Tag) {
					return true
				}
				for _, clause := range n.Body.List {
					reportCompared(pass, clause.(*ast.CaseClause).List...)
				}
			}
			return true
		})
	}
	return nil, nil
}

// isKind reports whether e is the Kind of a layer.Error, which is not wrapped.
func isKind(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Kind"
}

func reportCompared(pass *analysis.Pass, exprs ...ast.Expr) {
	for _, e := range exprs {
		id, ok := e.(*ast.Ident)
		if s, isSelector := e.(*ast.SelectorExpr); isSelector {
			id, ok = s.Sel, true
		}
		if ok && isLayerError(pass.TypesInfo.Uses[id]) {
			pass.Reportf(e.Pos(), "layer.%s comes wrapped: use errors.Is", id.Name)
		}
	}
}
