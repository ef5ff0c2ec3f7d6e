"""Training: recipe -> rows -> features -> anchors -> loss -> drafter. Import the modules; heavy ones load on demand."""
